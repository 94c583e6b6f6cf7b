"""How agents act on the world: one ToolSet seam, wrapped. It speaks plain values and knows no models or agents."""
