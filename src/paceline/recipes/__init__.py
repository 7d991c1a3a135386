"""Ready jobs on data that the install carries, and the form in which users write their own."""
