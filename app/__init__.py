"""The Streamlit app. `main.py` is its server, `page_table.py` runs for each visitor."""
