"""What is asked of an attention kernel, what it launches, and what came of it.

`Problem` × `Config` → `LaunchPlan` → `Evaluation`: the nouns that the rooms above share. Nothing
here predicts, executes or measures.
"""
