"""/v1/responses: OpenAI's newer API, over the same chat; no state is kept between requests."""
