"""What the connectors of all engines share: settings, the attachment of a process, names of weights."""
