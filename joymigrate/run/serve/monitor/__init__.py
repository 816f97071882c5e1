"""What services do, in numbers: metrics, history, alerts, one dashboard page, exports."""
