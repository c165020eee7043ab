from bundle_fixtures import trained

__all__ = ["trained"]
