"""What a collective costs: formulas over published links, or curves measured on the devices at hand."""
