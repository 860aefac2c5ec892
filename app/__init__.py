"""The Streamlit app: what a person sees of the engine. `main.py` holds the page table."""
