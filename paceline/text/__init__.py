"""Between text and token ids: tokenizer, chat template, and the stream that turns ids back into text."""
