"""What weft-tiny was made of: records and the questions asked about them. Imports nothing else of weft but errors."""
