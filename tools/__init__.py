"""The programs that come with kvshm."""
