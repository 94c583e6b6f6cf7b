"""Money that the shop gives back: each customer's request once, never more than was paid, and nothing forgotten.

`claim` (key and reservation) > approval by a person where the policy asks for one > `take` (a lease, durable before
the call) > the payment provider, outside any transaction > `settle` (only by the newest lease). A process may die or
sleep between any two of them; the completer goes on where it stopped.
"""
