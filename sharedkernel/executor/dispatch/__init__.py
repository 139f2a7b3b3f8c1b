"""From events to actions: the scheduler is told what happened, and what it decides is carried out."""
