"""The ground floor: units, devices, models, data, files and processes.

What belongs here is used by several rooms and imports none of them. What only one room uses lives in that room.
"""
