"""OpenAI's Responses API over HTTP, kept in the session store. Translates only; the session manager decides."""
