"""The gateway: OpenAI's HTTP in front of the request pool. Knows text; knows no tensors."""
