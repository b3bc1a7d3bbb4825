"""One module a contender, one function a job, of the same name."""
