"""Writes 6,000 orders to cluster east of the sandbox in this folder, as an application would.

usage: python docs/first_orders.py
"""

from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from mirrorbook_tools.sandbox.credentials import ADMIN, APP
from mirrorbook_tools.sandbox.sandbox import Sandbox

east = Sandbox(Path(".sandbox")).cluster("east")
admin = AdminClient({**east.client_config(ADMIN)})
admin.create_topics([NewTopic("orders", 3)])["orders"].result()

application = Producer({**east.client_config(APP)})
for number in range(6_000):
    application.produce("orders", value=f"order {number}", partition=number % 3)
if left := application.flush(60):
    raise SystemExit(f"{left} order(s) were not delivered: does `mirrorbook sandbox status` say that east answers?")
