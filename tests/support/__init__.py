"""What several tests share: small problems of every kind, oracles, and hand-made plans. Imported as
``tests.support``."""
