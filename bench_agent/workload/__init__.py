"""What is sent: sessions of turns, their texts, and made-up agents."""
