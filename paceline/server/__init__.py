"""The HTTP half: OpenAI's API in front of one engine, and the request log. Text and JSON here; the engine has ids."""
