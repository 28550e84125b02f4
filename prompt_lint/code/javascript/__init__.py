"""TypeScript and JavaScript to the small form: a lexer and a tolerant parser, enough for data flow."""
