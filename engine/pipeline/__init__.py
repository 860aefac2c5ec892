"""The one way from a request to its evaluation: `request`, `preview`, `evaluate`, `bench`."""
