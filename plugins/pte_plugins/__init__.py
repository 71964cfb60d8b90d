"""The built-in strategies, one file each. The program finds them through entry points, as it finds anyone's."""
