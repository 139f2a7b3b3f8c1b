"""What people see: JupyterLab in a real browser, with a real gateway and executor behind it."""
