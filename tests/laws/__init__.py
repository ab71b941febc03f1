"""Laws: every Function of a catalogue under stacks of transformations."""
