"""``sessile doctor``: what was found on this machine, what is wrong, and what to do about it."""
