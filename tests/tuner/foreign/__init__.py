"""Result files of other tools, one module of tests a tool."""
