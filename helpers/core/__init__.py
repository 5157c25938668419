"""What most rooms need: units, devices, models, data, files and processes.

Modules here are used by several rooms and import none of them. What only one room uses belongs in that room.
"""
