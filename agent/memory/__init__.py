"""Who holds which tensor: a look at all storages of the process, and at the references that lead to each.

A reader asks for it (`tensors`); the look runs on the training thread at a boundary, where nothing changes under it.
What it finds is plain: of each storage its bytes and the place that holds it, a place being another one and the text of
an edge (`.blocks`, `[3]`).  Names, folding and comparing are the reader's.

May import `serve`, `steps`, `names`, `boundary`, `inspect`.  Invariant: no code of the job's runs, for it is read with
C accessors alone: no attribute is fetched by name, nothing is compared, hashed, unpacked or made; and nothing of the
job's is referred to when the look is over.
"""
