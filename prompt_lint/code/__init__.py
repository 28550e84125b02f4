"""Analysis of source that builds prompts: data flow for Python and TypeScript, patterns for Go, Rust and templates."""
