"""What may come in: encoding, sizes, secrets, URLs, money, canonical JSON. Every external text crosses here."""
