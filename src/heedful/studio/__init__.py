"""The studio: a page that shows a trained model at work, and the routes that only the page needs."""
