"""The wire messages. They import nothing but pydantic and the error tree."""
