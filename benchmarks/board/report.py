"""placeholder"""

FORMS = ("html", "markdown", "csv")


def write(given, listed):
    return 0
