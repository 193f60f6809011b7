"""Third-party models behind the interfaces of this package."""
