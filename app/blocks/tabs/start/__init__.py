"""Above the tabs: the header, the choice to start with, what was left out, a pack that misfits."""
