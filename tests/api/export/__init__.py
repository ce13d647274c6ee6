"""Points as other programs take them."""
