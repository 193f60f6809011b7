"""Compositions of layers that encoders are made of: residual, Res2Net and squeeze-excitation blocks."""
