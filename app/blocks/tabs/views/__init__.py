"""The Views tab: one image through a method's views, the view lens and the collapse meter."""
