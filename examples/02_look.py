"""A sentence through a real encoder: which tokens attend to which, every step, and the page."""

import limelight as ll

rec = ll.look("The animal didn't cross the street because it was too tired.")
print(rec)
print('"it" looks at', rec.top(layer=3, head=1, token="it")[:3])
for link in rec.strongest(5).links:
    print(link)
it = [token.text for token in rec.tokens].index("it")
for line in rec.steps(layer=3, head=1).story(it):
    print(line)
rec.save("attention.html")
