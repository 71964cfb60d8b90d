"""Problems with answers that can be checked: the built-in procedural task."""
