"""Parts of the page "Sessions": the working session, the store's list, an opened snapshot."""
