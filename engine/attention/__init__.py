"""Data types of attention: problems, configs, launch plans and evaluations.

`Problem` × `Config` → `LaunchPlan` → `Evaluation`. Nothing here predicts, executes or measures.
"""
