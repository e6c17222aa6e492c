"""Files that configure the parts abcast stands on. A package only so that an installed abcast finds them.

ivy.xml                   the jars that Spark and the embedded broker need, with their versions
log4j2.properties         Spark's logging: warnings, to standard error
broker-log4j2.properties  the embedded broker's logging: a rolling file per node
requirements.lock         the Python packages abcast runs with, exact and hashed; `make lock` writes it
requirements-dev.lock     the same, and what tests and checks need
"""
