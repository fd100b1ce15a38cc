"""Results as data: what runs came to, kept in files, and the tables and plots made of them."""
