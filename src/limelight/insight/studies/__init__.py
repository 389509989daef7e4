"""Claims that textbooks make about attention, each measured: one file a study."""
