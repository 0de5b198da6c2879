"""One package per service. Services never import each other; they meet in `shared`."""
