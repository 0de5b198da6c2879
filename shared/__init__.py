"""The contract between services: names, messages, atomic pool steps and plumbing.

Nothing here decides anything. If a change of scheduling policy would change a function in this
package, the function is in the wrong place. It imports no service, no torch and no transformers.
"""
