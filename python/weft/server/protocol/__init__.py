"""Request bodies: the fields of each route, and the reasons why some fields are refused."""
